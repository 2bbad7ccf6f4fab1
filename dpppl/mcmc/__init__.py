"""`dpppl.MCMC` and its kernels, in reading order.

A run (`runner.MCMC.run`), in outline; each step is one charged access to rows:

    bind the kernel to the model: what a row's log likelihood is, from shapes alone                  (kernel, bound)
    where the norm is "auto": ask for a frame, then for a histogram of norms; from these, the norm   (runner)
    draw first states; rehearse the chain on prior and noise alone, before its steps are charged     (chains, rehearsal)
    with matched steps and no frame: measure the curvature in the first part of the warmup           (step_search)
    step: ask for the noisy sum of clipped gradients, and move; the noise is the sampler's own       (bound, three_kernels)
    measure the releases: which elements have arrived, whether steps were short enough               (measured)
    when it is asked for: say which elements may be read                                             (verdict)

Letters: z latents, unconstrained; u the coordinates in which a chain moves and gradients are clipped; h the step size; C the
clipping norm; s the sd of a step's one Gaussian draw, s = h C (noise multiplier) / rate; v, p velocity and momentum.

A step.
    step_search   how long steps may be, from gradients that are released anyway
    dynamics      the state of a chain; settings of a kernel, and step sizes, noise and cost that follow
    bound         a kernel with a model's arguments: first states, one step
    kernel        NumPyro's calling convention
    three_kernels DPSGLD, DPSGHMC, DPSGNHT

A run.
    chains        what was called for; first states, and the plan of the steps
    rehearsal     the chain without rows: does it explode?
    measured      numbers on what was released
    verdict       which elements of each site may be read
    outcome       samples, weights, verdict; a table
    details       the report's lines about chains
    checks        arguments, checked
    runner        NumPyro's calls
"""
