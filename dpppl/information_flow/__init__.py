"""Proves on a traced program that private rows reach its outputs only through the door: see `verify`."""

from dpppl.information_flow.proof import NOT_PROVED, ProofReport, register_door, verify, verify_jaxpr
from dpppl.information_flow.rules import check_row_program
from dpppl.information_flow.walk import Roles

__all__ = [
    "NOT_PROVED", "ProofReport", "Roles", "check_row_program", "register_door",
    "verify", "verify_jaxpr",
]  # fmt: skip
