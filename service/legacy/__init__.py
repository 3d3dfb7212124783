"""Clients of the `initialize` era, on the same endpoint and over the same methods.

Sessions, streams and the handshake are the official SDK's; what a request means is not decided
here. Each becomes an `Exchange` like any other, and its answer is written as its era writes it.
"""
