"""The draft's names and numbers. It moves, so this is the one module that knows them."""

LIST = "events/list"
POLL = "events/poll"
STREAM = "events/stream"
SUBSCRIBE = "events/subscribe"
UNSUBSCRIBE = "events/unsubscribe"

ACTIVE = "notifications/events/active"
EVENT = "notifications/events/event"
HEARTBEAT = "notifications/events/heartbeat"
TERMINATED = "notifications/events/terminated"

EXTENSION = "io.modelcontextprotocol/events"

NOT_FOUND = -32011
FORBIDDEN = -32012
RESOURCE_EXHAUSTED = -32013
UNSUPPORTED = -32014
CALLBACK_ENDPOINT = -32015

HEARTBEAT_S = 15.0  # the draft asks for 30 s at least; a client may take 60 s of silence for death
POLL_EVENTS_DEFAULT = 100
POLL_EVENTS_MAX = 1_000
NEXT_POLL_MS = 30_000
