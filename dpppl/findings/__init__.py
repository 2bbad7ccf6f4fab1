"""One answer to "may these results be read?" for all methods, in reading order.

A method's record of a run yields findings; `finding.Verdict` ranks them, and makes of them its line, its refusals and warnings.

    finding       a Finding, the one order of precedence, and the Verdict of a run: its line, refusals, words by site
    counted_rows  clipped rows and rows that do not inform a posterior, from noised counts
    directions    latents that are known only together
    learned       how much the data informed each element, and which elements depend on others
"""
