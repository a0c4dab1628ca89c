"""RunConfig to Plan, stage by stage. `check` stops here."""
