"""Words and numbers about a run, in reading order.

`ReportFacts.report` of `runs.private_runner` fills a PrivacyReport; `report.PrivacyReport.rows` names its lines; `render` formats
them.

    version         the version of the package
    provenance      where keys and starting values come from, and how far a run got
    risk            limits on attacks: the headline, mu, error rates
    labels          labels of elements in place of their numbers
    render          the report as text and as a notebook's cell
    report          PrivacyReport: a core, and the details of a method
    inference_data  ArviZ's InferenceData, without groups that hold private rows
    to_arviz        samples and report for ArviZ
"""
