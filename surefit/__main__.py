"""`python -m surefit`, which `accelerate launch -m surefit` uses."""

from surefit.cli import main

main()
