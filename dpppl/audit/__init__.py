"""Audits of runs on made-up data, or on data of the auditor's own: attacks, and record and replay."""

from dpppl.audit.attacks import audit as audit
from dpppl.audit.replay import Replayed as Replayed
from dpppl.audit.replay import replay as replay
from dpppl.audit.result import AuditResult as AuditResult

__all__ = ["AuditResult", "Replayed", "audit", "replay"]
