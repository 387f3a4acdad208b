"""Dashboards for Grafana and alert rules for Prometheus.

``python -m deployments.dashboards`` writes the dashboards anew.
"""
