"""Shipped for authors: small plans and clusters, and the contract suite that proves a technique. Nothing in orch/
imports it.
"""
