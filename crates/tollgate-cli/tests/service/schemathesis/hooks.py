"""Values for formats of tollgate that schemathesis does not know."""

import schemathesis
from hypothesis import strategies as st

schemathesis.openapi.format("endpoint", st.from_regex(r"/[a-z0-9._~/-]{0,40}", fullmatch=True))


@schemathesis.serializer("application/toml")
def toml(_context, value):
    """Sends the text of an import as it is."""
    return str(value).encode()
