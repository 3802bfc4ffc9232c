"""Looking at a model: tables about it on labelled rows, its classes as a tree, and a report in one file."""

from extremax.analysis.document import beside, load_analysis, make_document, save_document
from extremax.analysis.model_analysis import Analysis, analyse
from extremax.analysis.page import ModelPage
from extremax.analysis.report import report_html, write_report
from extremax.analysis.tables import AnalysisConfig, Table

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
