"""What the policies of a trace are called. Plain words, no mlx."""

from __future__ import annotations

from collections.abc import Sequence

from keepwarm.bench.trace.marconi import is_marconi
from keepwarm.errors import BadInput

OURS = "worth"
PEER = "mlx-lm"
# Each keeps keepwarm's tree and placement, save mlx-lm, which has its own.
POLICIES = (OURS, "lru", "fifo", "type", "marconi", PEER)
# These know the future: a policy in the same tree, and what no cache can pass.
ORACLE = "oracle"
BOUND = "bound"


def checked_policies(names: Sequence[str]) -> list[str]:
    """Each once. Raises BadInput for a name that is none of ours."""
    known = (*POLICIES, ORACLE)
    for name in names:
        if name not in known and not is_marconi(name):
            raise BadInput(
                f"--policies: there is no policy {name!r}; choose among {', '.join(known)}"
            )
    return list(dict.fromkeys(names))
