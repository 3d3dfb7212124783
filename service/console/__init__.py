"""The console: HTML pages for people, behind the identity and the scopes that clients have."""
