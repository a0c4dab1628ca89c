"""`surefit selftest`: a few minutes of real runs that show whether this machine trains correctly.

Each check runs in a process of its own, so that a crash is a failed check and not the end of the
test. A check that produces no result has failed: no evidence is a failure.
"""
