"""Finish a release: `python -m tools.release DIRECTORY`, with the wheel, the sdist and the npm tarball in it."""

import sys
from pathlib import Path

from tools.release import find_obstacles, write_release

write_release(Path(sys.argv[1]))
for obstacle in find_obstacles():
    print(f"not to be published yet: {obstacle}", file=sys.stderr)
