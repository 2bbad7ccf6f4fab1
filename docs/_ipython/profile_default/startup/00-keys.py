"""The site's pages draw the same secret keys in every build, so that their numbers stay. Yours are never the same."""

import hashlib
import itertools
import types
import warnings

from dpppl.randomness import keys

_numbers = itertools.count()
keys.os = types.SimpleNamespace(urandom=lambda count: hashlib.shake_256(b"site %d" % next(_numbers)).digest(count))
warnings.filterwarnings("ignore", message="IProgress")
