"""Looking at a model: tables about it on labelled rows, its classes as a tree, and a report in one file."""

from extremax.report.document import beside, load_analysis, make_document, save_document
from extremax.report.model_analysis import Analysis, analyse
from extremax.report.page import ModelPage
from extremax.report.report import report_html, write_report
from extremax.report.tables import AnalysisConfig, Table

__all__ = [
    "Analysis",
    "AnalysisConfig",
    "ModelPage",
    "Table",
    "analyse",
    "beside",
    "load_analysis",
    "make_document",
    "report_html",
    "save_document",
    "write_report",
]
