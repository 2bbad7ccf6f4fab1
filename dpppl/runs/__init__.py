"""The protocol that all methods share: admit, prove, charge, run; in reading order.

A run of chains or SVI (`driver.drive`), in outline. Queries and NoiseAware open sessions of their own. With a frame or a
histogram of norms, `frame.locate` opens the session of the run, makes these accesses, and the steps follow in it:

    trace the program of a chunk, prove it, compile it                                         (driver)
    open a session: processes agree, reserve the cost, use up the key, print the cost          (session, processes, announcement)
    chunk by chunk: charge, run the chunk, keep what it released, save a checkpoint            (driver, budget, checkpoint)
    end the session: give back the cost of steps that did not run                              (budget)

A session with the data.
    watching        how an audit watches charges and programs of a run; closed in every other run
    budget          Budget: target, calibration, admission, atomic charges, returns; a Charge
    processes       several processes agree on a run; process 0 charges, the others begin after it
    announcement    lines printed before a run: cost, bytes to read from disk, notes
    checkpoint      a killed run continues: the same keys, the same numbers, no second charge
    session         the one protocol: agree, reserve, use up the key, announce, charge
Steps.
    progress        the progress bar, whose seconds go on while a program compiles
    placing         programs and arguments where rows are sharded over devices; a number that identifies rows
    driver          trace, prove, compile; then chunk by chunk: charge, run, record, checkpoint
    duration        how long a run takes, from the equations of a row's program, before any data are touched
The calls of a user.
    private_runner  Privacy, and the base of MCMC, SVI and NoiseAware: budget, report, checkpoint, mesh
    histogram       clipping_norm="auto": the charged histogram of norms
    single_steps    SVI.update: each state steps once
    query           a charged query: a noisy sum over all rows of a bounded number
    private_score   the mean score of private rows, noised and charged
    private_scale   location and scale of private columns, noised and charged
"""
