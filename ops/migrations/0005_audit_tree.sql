-- The Merkle tree over the log: a leaf for each event in the order of positions, the roots of complete subtrees of 256,
-- 65,536 … leaves, and the signed checkpoints. A follower writes them; nothing that appends waits for it.

CREATE TABLE outlast.audit_leaves (
    number   bigint PRIMARY KEY,
    position bigint NOT NULL,
    hash     bytea  NOT NULL
);
CREATE UNIQUE INDEX audit_leaves_position_idx ON outlast.audit_leaves (position);

-- Computed from the leaves, and there so that a proof need not read them all.
CREATE TABLE outlast.audit_nodes (
    level  smallint NOT NULL,
    number bigint   NOT NULL,
    hash   bytea    NOT NULL,
    PRIMARY KEY (level, number)
);

CREATE TABLE outlast.audit_checkpoints (
    size         bigint PRIMARY KEY,
    root         bytea  NOT NULL,
    position     bigint NOT NULL,
    note         text   NOT NULL,
    signed_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    cosignatures text   NOT NULL DEFAULT ''
);

-- How far the witness has signed. A row, so that replicas go on where another stopped.
CREATE TABLE outlast.audit_witness (
    url  text PRIMARY KEY,
    size bigint NOT NULL
);
