"""Audits of runs on made-up data, or on data of the auditor's own: attacks, and record and replay."""

from dpppl.contrib.audit.attacks import audit as audit
from dpppl.contrib.audit.replay import Replayed as Replayed
from dpppl.contrib.audit.replay import replay as replay
from dpppl.contrib.audit.result import AuditResult as AuditResult

__all__ = ["AuditResult", "Replayed", "audit", "replay"]
