"""Proves on a traced program that private rows reach its outputs only through the door: see `verify`."""

from dpppl.information_flow.primitives import register_sampler, register_table
from dpppl.information_flow.proof import NOT_PROVED, ProofReport, register_door, verify, verify_jaxpr

__all__ = ["NOT_PROVED", "ProofReport", "register_door", "register_sampler", "register_table", "verify", "verify_jaxpr"]
