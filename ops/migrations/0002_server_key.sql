-- The key that seals request state, one for all replicas on this database, made here so that none has to be set.
-- Two random UUIDs carry 244 random bits.

CREATE TABLE outlast.server_key (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    key      text NOT NULL
);
INSERT INTO outlast.server_key (key)
VALUES (encode(sha256((gen_random_uuid()::text || gen_random_uuid()::text)::bytea), 'hex'));
