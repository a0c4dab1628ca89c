"""RunConfig to Plan, stage by stage along the way of the data. `check` stops here."""

from surefit.planning.draft import make_plan
from surefit.planning.scoring import check_metric

__all__ = ["check_metric", "make_plan"]
