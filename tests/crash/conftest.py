import sys
from pathlib import Path

# The checker and the load generator are modules of these tests only.
sys.path.insert(0, str(Path(__file__).parent))
