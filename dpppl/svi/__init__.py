"""`dpppl.SVI`, in reading order.

A run (`runner.SVI.run`; its start and cost: `by_hand`, `settings`), in outline; each step is one charged access to rows:

    set the guide up on made-up rows, and split the ELBO: the sum over rows, and the rest            (guides, binding)
    where the norm is "auto": ask for a frame, then for a histogram of norms; from these, the norm   (settings, runner)
    step: draw latents from the guide; ask for the noisy sum of clipped gradients of rows; pull it
        back through the guide, add the exact gradient of the rest, and let the optimiser move       (elbo, step)
    when `params` is read: average the last half of the iterates                                     (result)
    when `convergence` is read: say from the noisy gradients whether the run has arrived, and what
        the data informed                                                                            (verdict, latents)

Of a wide model, by default: no frame and no histogram; flat clipping at a norm that looks at no row; Poisson batches.

Letters: phi the guide's parameters, psi those of the same guide of u (`frame.moved_guides`), z latents, all unconstrained; u the
latents in a frame's metric; q the guide. A particle is a draw of the guide; the tail is the last half of what a run kept.

The objective.
    dropout             MC Dropout as a guide
    guides              which guides are safe, and how they are set up without data
    elbo                the ELBO in two parts, and the sum that a step needs
    step                one step
    optimizers          optimisers that need no loss

What is made of a run.
    verdict             whether it has arrived
    latents             how much the data informed each latent
    noise_aware_params  parameters corrected and widened for the noise
    result              parameters, draws, verdict, report

The calls of a user.
    settings            arguments, checked, and their defaults; budget and report
    binding             arguments -> objective
    by_hand             init, update and charged queries
    runner              NumPyro's run
"""
