"""The URL of a PostgreSQL database, read by libpq's own parser, and the same without its secrets."""

import re
from urllib.parse import quote, unquote, urlencode

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

#: How libpq marks an option whose value is not to be shown.
_SECRET = b"*"

#: An option of holdfast's own: libpq knows no schema.
_SCHEMA = re.compile(r"(?<=[?&])schema=([^&]*)&?")
DEFAULT_SCHEMA = "holdfast"


def parse_schema(url: str) -> str:
    """Return the schema that a URL names with `?schema=NAME`, else the default."""
    found = _SCHEMA.search(url)
    return DEFAULT_SCHEMA if found is None else unquote(found[1])


def parse_postgres_url(url: str) -> dict[str, str]:
    """Return the options for libpq in a URL, or in another form that libpq takes. `schema` is not among them.

    Raises:
        ValueError: it names no database. The text does not quote the URL, which may hold a password.
    """
    url = _SCHEMA.sub("", url).removesuffix("&").removesuffix("?")
    try:
        options = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    except psycopg.Error as exc:
        # libpq may quote the password.
        reason = re.split("[\"'«„“:]", str(exc))[0].strip()
        raise ValueError(f"not the URL of a PostgreSQL database, use postgresql://...: {reason}") from None
    if _has_stray_characters(url, options):
        raise ValueError(
            "not the URL of a PostgreSQL database: in a user name or password, write @ as %40, / as %2F and : as %3A"
        )
    return options


def redact_postgres_url(url: str) -> str:
    """Return a URL of the same database that libpq takes, with `***` for each secret.

    Raises:
        ValueError: as `parse_postgres_url`.
    """
    options = parse_postgres_url(url)
    secrets = {option.keyword.decode() for option in pq.Conninfo.get_defaults() if option.dispchar == _SECRET}
    shown = {name: "***" if name in secrets else value for name, value in options.items()}
    user, password = shown.pop("user", ""), shown.pop("password", "")
    host, port, database = shown.pop("host", ""), shown.pop("port", ""), shown.pop("dbname", "")
    if not re.fullmatch(r"[\w.-]+", host):  # a folder, several hosts or an IPv6 address
        shown = {name: value for name, value in {"host": host, "port": port}.items() if value} | shown
        host = port = ""
    account = quote(user, safe="") + (f":{password}" if password else "")
    if _SCHEMA.search(url):
        shown["schema"] = parse_schema(url)
    query = urlencode(shown, safe="/,*:", quote_via=quote)
    return (
        "postgresql://"
        + (f"{account}@" if account else "")
        + host
        + (f":{port}" if port else "")
        + (f"/{quote(database, safe='')}" if database else "")
        + (f"?{query}" if query else "")
    )


def _has_stray_characters(url: str, options: dict[str, str]) -> bool:
    """Return whether a part of the password seems to be in the host, port or database."""
    if not re.fullmatch(r"[\d,]*", options.get("port", "")):
        return True
    start = re.match(r"postgres(?:ql)?://", url)
    if start is None:
        return False
    # As libpq does: the user name and password end at the first @, unless a / comes before it.
    account = re.match(r"[^@/]*@", url[start.end() :])
    rest = url[start.end() + (account.end() if account else 0) :]
    return "@" in rest.partition("?")[0]
