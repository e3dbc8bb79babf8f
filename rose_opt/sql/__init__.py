"""SQL over traces: documented views, and queries that people ask for."""

from rose_opt.facts.store import QueryError, Rows
from rose_opt.sql.catalogue import Column, NamedQuery, View, queries, views
from rose_opt.sql.session import Session, named_query

__all__ = [
    "Column",
    "NamedQuery",
    "QueryError",
    "Rows",
    "Session",
    "View",
    "named_query",
    "queries",
    "views",
]
