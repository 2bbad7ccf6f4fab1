"""The one door to private rows: clip, sum, add noise; in reading order.

An access (`door.noisy_sum`) in outline:

    trace the gradient of one row's log likelihood, or the program of its factors      (door, factors)
    check the program, and the classes of clipping, subsampling, factors, placement    (door `_EXACT`)
    rewrite the program of one row: `dpppl.row_program`                                (door)
    draw rows; clip the statistic of each; sum exactly over chunks and devices         (drawn, exact_sum, ghost_sum)
    add noise once, from the key and the step                                          (mechanism)

    clipping        flat and centred clipping; norms of rows' gradients
    drawn           the rows of a step that a device has, sums over devices, one noise
    exact_sum       exact sum of clipped per-row gradients, at once or chunk by chunk
    convolutions    convolutions and pooling that are fast inside loops
    factors         where the program of one row uses latents, and the program that gives factors of its gradient
    ghost_sum       norms of rows from above, weights, the weighted product, and the proof of its slack
    mechanism       settings of an access, its cost, and the computation behind the door
    door            noisy_sum and noisy_statistic: a JAX primitive that holds the program of one row; admits classes by name
    centring        clipping around the gradient that the model expects of a row
    norm_histogram  how long rows' gradients are: a private histogram, and quantiles from it
"""
