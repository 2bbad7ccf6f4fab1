"""NumPyro model -> prior and the log likelihood of one row, in reading order.

`split.split_model`, in outline; it sees shapes, types and made-up rows:

    find which arguments are private rows and which are public                      (arguments, public_values)
    trace the model; read its sites and plates; refuse, with a cure                 (handlers, structure, refusals)
    check that no row enters the prior or another row                               (row_independence)
    SplitModel: log_prior(z), log_likelihood(z, row)                                (split)

The call.
    array_likes       data frames, series and lists of numbers among the arguments, as arrays
    public_values     which arguments are public without a mark; their names and types for the report
    arguments         which arguments are private rows, public arrays, or no arrays
The model.
    quadrature        values at which a continuous latent of a row is tried
    structure         sites and plates, as NumPyro's trace shows them; latents of a row that are summed out
    refusals          models that cannot be split, and errors that say what to write instead
    handlers          running a model on some rows, with its latents given
    row_independence  whether the prior looks at rows, and rows at each other
    indices           rows with an index out of range, or with NaN instead of an integer
    missing           latents that stand for missing values, and the rows that they complete
    split             log_prior(z), log_likelihood(z, row)
    initialization    draws from the prior, and starting values that never look at data
Responses that a model could give, for centred clipping and NoiseAware.
    quick             uniform and normal numbers that need not be secret
    samplers          draws of common responses, fast for many rows at once
    censoring         the law of a time and of whether it is censored, and draws of both
    own_values        whether observed values are a row's own, so that others may be drawn instead
    supports          which responses a distribution cannot produce, and how to code them
    censoring_checks  whether sites declare when their rows would have been censored
    laws              laws of responses and latents in words
    responses         the responses that a model could have given for a row
    units             all rows of a person as one record
"""
