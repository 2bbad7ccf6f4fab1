"""The table that `NoiseAware.print_summary` prints."""

from typing import Any

from numpyro.diagnostics import print_summary

from dpppl.noise_aware.verdict import Verdict


def print_table(samples: dict[str, Any], verdict: Verdict, prob: float) -> None:
    """Print NumPyro's summary of samples by site (1, num_samples, ...), the verdict, and what was learned of each latent."""
    print_summary(samples, prob=prob, group_by_chain=True)
    print(f"verdict: {verdict.line()}")
    for line in [*verdict.refusals, *verdict.doubts][1:] + [*filter(None, [verdict.released])]:
        print(f"verdict: {line}")
    shares = verdict.share_learned()
    for word in ("learned", "partly", "prior"):
        names = [name for name, found in shares if found == word]
        if names:
            shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
            print(f"{word}: {shown}")
