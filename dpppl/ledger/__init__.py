"""One budget for all that looks at the same data, in a file that processes share; in reading order.

A call (`PrivacyLedger.reserve`, `charge`) in outline:

    count the cost of the events                                          (privacy_filter)
    lock the file, check each line that is new, and add it to the book    (append_only, book)
    admit, or raise and write nothing                                     (privacy_filter)
    append one record, and wait until it is on the disk                   (append_only)

    append_only     append-only file: lock, check of every line, fsync; its head
    privacy_filter  which runs a budget admits, also when they are chosen adaptively, and why
    book            the file's words on the budget, on each run, and on its process
    report          LedgerReport
    privacy_ledger  PrivacyLedger: reserve, charge, release
    follower        the ledger as processes other than process 0 see it
"""
