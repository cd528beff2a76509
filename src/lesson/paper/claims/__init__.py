"""Every statement of the paper that numbers can test, each with the function that measures it."""

from lesson.paper.claims import accuracies, clients, deadlines, latencies  # noqa: F401  # importing them registers their claims
from lesson.paper.claims.base import CLAIMS, Claim, check_claims

__all__ = ["CLAIMS", "Claim", "check_claims"]
