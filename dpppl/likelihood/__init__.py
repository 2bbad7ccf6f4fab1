"""The form of a model's likelihood, found without data, in reading order.

`row_statistics.coordinates` and `noise_aware.binding` call these on traced programs.

    search    sites that it can be measured in, latents or deterministic ones
    symmetry  latents that may change places or signs
    unnamed   values without a name through which alone rows know latents; their cure
"""
