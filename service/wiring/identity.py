"""Who may come in, and by what: one identity out of all ways that the settings name."""

from ...adapters import identity, jwks, oauth
from ...domain.owner import LOCAL_CALLER
from ...domain.ports import Identity
from ..access import Access, Protected
from ..config import Config, Issuer
from ..guard import ANY, Guard
from ..settings import Settings


def issuers_of(config: Config) -> oauth.OAuthTokens | None:
    """The callers with tokens of issuers; None when there are no issuers. To be closed."""
    given = config.identity
    if not given.issuers:
        return None
    named = [_issuer(one, given.resource or "") for one in given.issuers]
    return oauth.OAuthTokens(named, given.scope_prefix)


def identity_of(settings: Settings, issuers: oauth.OAuthTokens | None) -> Identity:
    """One identity out of all ways to be known.

    Who is anonymous may operate the service only from this machine, and only while the settings
    have no token for that.
    """
    ways: list[Identity] = []
    if settings.admin_token is not None:
        ways.append(identity.OperatorToken(settings.admin_token))
    if settings.tokens_file is not None:
        ways.append(identity.StaticTokens.read(settings.tokens_file))
    if issuers is not None:
        ways.append(issuers)
    if settings.tokens_file is None and issuers is None:
        may_all = settings.is_loopback and settings.admin_token is None
        scopes = LOCAL_CALLER.scopes if may_all else frozenset(identity.USUAL_SCOPES)
        ways.append(identity.LocalIdentity(scopes))
    return identity.Identities(ways)


def access_of(settings: Settings, config: Config, who: Identity) -> Access:
    """The rule at every door of this service."""
    return Access(who, guard_of(settings), protected_of(config))


def guard_of(settings: Settings) -> Guard:
    """The names that this service goes by."""
    return Guard(settings.allowed_hosts, settings.allowed_origins)


def own_access() -> Access:
    """For doors that stand open inside one process and nowhere else."""
    return Access(identity.LocalIdentity(), Guard([ANY], [ANY]))


def protected_of(config: Config) -> Protected | None:
    """This service as a resource of OAuth issuers; None without any."""
    given = config.identity
    if not given.issuers or given.resource is None:
        return None
    return Protected(given.resource, [one.issuer for one in given.issuers], given.scope_prefix)


def _issuer(given: Issuer, resource: str) -> oauth.Issuer:
    source = jwks.KeySource(given.issuer, given.jwks_url, given.ca_file)
    claims = oauth.CLIENT_CLAIMS if given.client_claim is None else (given.client_claim,)
    return oauth.Issuer(
        given.issuer,
        given.audience or [resource],
        list(given.algorithms),
        jwks.KeyRing(given.issuer, source),
        claims,
    )
