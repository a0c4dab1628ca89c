"""`surefit ui`: a local page over a folder of runs."""
