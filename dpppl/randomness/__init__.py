"""Secret keys and the noise that is drawn from them, in reading order.

A run's key is claimed once (`keys.claim`); `keys.stream` gives each use a key by name, and each access folds its step in.

    native             ChaCha20's blocks, and normal draws of them, in C for CPUs (native.c, an extension that installing builds)
    chacha             ChaCha20 (RFC 8439) as a JAX generator
    keys               secret keys, each used once; named streams
    normal             standard normal draws with full tails
    discrete_gaussian  the discrete Gaussian, drawn with integers alone
"""
