"""What the file's settings mean, where the model itself does not say it in a `description`."""

SECTIONS = {
    "server": (
        "The process. Each of these can also be set as the environment variable beside it; flags of"
        " the command win over the environment, which wins over the file. Lists are written as JSON"
        " in the environment (`data_keys` with commas)."
    ),
    "upstreams.NAME": (
        "A server to stand in front of; NAME is yours. `${NAME}` in a value of `env` or `headers`"
        " is that variable of the environment."
    ),
    "defaults": "How tools are run.",
    "tools.NAME": (
        "How one tool is run, by the name that clients see: the settings of `[defaults]`, each with"
        " the default from there, and `bridge`."
    ),
    "tools.NAME.bridge": (
        "A tool that starts a job, and the tools that tell of it ([bridges](bridges.md))."
    ),
    "events": "The Triggers & Events draft, and [webhooks](webhooks.md).",
    "identity": "This service as an OAuth resource ([who may do what](identity.md)).",
    "identity.issuers": "An authorization server whose tokens are accepted.",
    "quotas": (
        "What owners may have, and how fast they may ask. Rates count in each `serve` for itself."
    ),
    "console": "[The console](console.md) at `/console`.",
    "console.oidc": "How people sign in by an issuer; without it they paste a token.",
}

WORDS = {
    "server.log_level": "how much is logged; logs never hold arguments, results or answers",
    "upstreams.NAME.command": "command that starts an MCP server on its standard input and output",
    "upstreams.NAME.url": "URL of its MCP endpoint; give either this or `command`",
    "upstreams.NAME.era": "whether it speaks this revision, or begins with `initialize`",
    "upstreams.NAME.env": "environment of the `command`",
    "upstreams.NAME.cwd": "folder of the `command`",
    "upstreams.NAME.headers": "headers of each request to the `url`",
    "upstreams.NAME.tasks": "it may make tasks of its own; default: true with `url`, else false",
    "defaults.run": "when a call becomes a task: never, once it outlives `grace`, always",
    "defaults.grace": "how long `auto` waits before the call becomes a task",
    "defaults.ask": "questions go into the task, or to the caller before there is a task",
    "defaults.ttl": "how long a task is kept from its creation; extended while it runs",
    "defaults.poll_interval": "what clients are told to wait between two polls",
    "defaults.timeout": "how long a tool may run, without the time it waits for answers",
    "defaults.on_worker_loss": "what becomes of a task whose worker is gone",
    "tools.NAME.bridge": "the table below",
    "tools.NAME.bridge.job_id": "where the tool's answer names the job",
    "tools.NAME.bridge.job_argument": "argument of the other tools that takes it",
    "tools.NAME.bridge.repeat": "arguments of the call that the other tools take as well",
    "tools.NAME.bridge.status_tool": "tool that tells how the job stands",
    "tools.NAME.bridge.status": "where its answer tells the state",
    "tools.NAME.bridge.working": "states in which the job goes on, as any that is not listed",
    "tools.NAME.bridge.completed": "states in which the job has succeeded",
    "tools.NAME.bridge.failed": "states in which the job has failed",
    "tools.NAME.bridge.cancelled": "states in which the job was cancelled",
    "tools.NAME.bridge.message": "where the message is; default: the state itself",
    "tools.NAME.bridge.progress": "where the progress is",
    "tools.NAME.bridge.total": "what the progress is out of",
    "tools.NAME.bridge.result_tool": "tool that gives the result; default: the last status",
    "tools.NAME.bridge.cancel_tool": "tool that cancels the job",
    "tools.NAME.bridge.poll_min": "shortest wait between two looks",
    "tools.NAME.bridge.poll_max": "longest wait between two looks",
    "tools.NAME.bridge.lost_after": "how long a job may be unknown before the task fails",
    "tools.NAME.bridge.cancel_wait": "how long a cancelled job gets to end",
    "events.enabled": "serve `events/*` and `subscriptions/listen` for event types",
    "events.webhooks": "accept webhook subscriptions",
    "events.development": "webhooks to loopback, by plain http, on any port, for the local owner",
    "events.ports": "ports that a webhook may go to",
    "events.ca_file": "certificates that are trusted beside the system's",
    "events.subscriptions_per_owner": "webhook subscriptions of one owner at most",
    "events.subscriptions": "webhook subscriptions of all owners at most",
    "events.ttl": "how long a subscription lives without a refresh",
    "events.ttl_max": "the longest that a client may ask for",
    "identity.resource": "URL by which clients name this service; issuers need it",
    "identity.scope_prefix": "what stands before our scopes in tokens",
    "identity.issuers": "the tables below",
    "identity.issuers.issuer": "its name, to the letter; https, or loopback",
    "identity.issuers.jwks_url": "where its keys are; default: what its metadata says",
    "identity.issuers.audience": "audiences that are accepted, one or a list; default: `resource`",
    "identity.issuers.algorithms": "signature algorithms that are accepted",
    "identity.issuers.client_claim": "claim of the client; default: `client_id`, then `azp`",
    "identity.issuers.ca_file": "certificates that are trusted beside the system's",
    "quotas.tasks_per_owner": "stored tasks of one owner",
    "quotas.working_per_owner": "tasks of one owner that are `working`",
    "quotas.parked_per_owner": "tasks of one owner that wait for an answer",
    "quotas.bytes_per_owner": "what the events of one owner's tasks take",
    "quotas.tasks": "stored tasks of all owners",
    "quotas.working": "tasks of all owners that are `working`",
    "quotas.parked": "tasks of all owners that wait for an answer",
    "quotas.bytes": "what the events of all tasks take",
    "quotas.running_per_owner": "tasks of one owner that run at once; more wait their turn",
    "quotas.calls_per_minute": "`tools/call` of one owner",
    "quotas.calls_per_minute_in_all": "`tools/call` of all owners",
    "quotas.polls_per_minute": "`tasks/get` of one task, and never less than its pace needs",
}
