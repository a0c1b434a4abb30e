"""`python main_marl.py --episodes 10 --verbose --show-best` is `orchestry run ...`."""

import sys

from orchestry.cli import main

if __name__ == "__main__":
    main(["run", *sys.argv[1:]])
