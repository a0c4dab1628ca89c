"""`python -m surefit`, which `torchrun -m surefit` and `accelerate launch -m surefit` use.

Python puts the working folder first on the path of `-m`. It is taken off before anything is
imported, so that a `yaml.py` there is not run; code that is named as `module:function` is found
there all the same.
"""

import sys

if not sys.flags.safe_path:
    del sys.path[0]

from surefit.cli import main

main()
