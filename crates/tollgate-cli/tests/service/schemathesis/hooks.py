"""Values for formats of tollgate that schemathesis does not know."""

import schemathesis
from hypothesis import strategies as st

schemathesis.openapi.format("endpoint", st.from_regex(r"/[a-z0-9._~/-]{0,40}", fullmatch=True))
