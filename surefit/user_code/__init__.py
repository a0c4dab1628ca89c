"""The user's own code: what may run, where it is found, and what is remembered of it."""

from surefit.user_code.named_code import NamedCode, find_files, report_code
from surefit.user_code.run_code import CodeGate, RunCode

__all__ = ["CodeGate", "NamedCode", "RunCode", "find_files", "report_code"]
