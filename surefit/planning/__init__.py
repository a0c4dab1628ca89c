"""RunConfig to Plan, stage by stage along the way of the data. `check` stops here."""

from surefit.planning.draft import check_metric, make_plan

__all__ = ["check_metric", "make_plan"]
