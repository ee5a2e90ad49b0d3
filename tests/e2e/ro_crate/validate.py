"""Validates a Workflow Run RO-Crate with roc-validator, without a network.

The one JSON-LD context that a crate names comes from the package rocrate.
"""

import json
import pkgutil
import sys

from rocrate_validator import models, services
from rocrate_validator.utils import document_loader, http

CONTEXT_URL = "https://w3id.org/ro/crate/1.1/context"
CONTEXT = json.loads(pkgutil.get_data("rocrate", "data/ro-crate.jsonld"))
assert CONTEXT["@id"] == CONTEXT_URL, CONTEXT["@id"]


class Response:
    status_code = 200
    ok = True
    headers = {"Content-Type": "application/ld+json"}
    text = json.dumps(CONTEXT)

    def json(self):
        return CONTEXT


def get(self, url, *arguments, **options):
    if url != CONTEXT_URL:
        raise RuntimeError(f"unexpected request: {url}")
    return Response()


http.HttpRequester.get = get
document_loader._fetch_json_ld = lambda url: get(None, url).json()

severity = models.Severity.REQUIRED
result = services.validate(
    services.ValidationSettings(
        rocrate_uri=sys.argv[1],
        profile_identifier="workflow-run-crate-0.5",
        requirement_severity=severity,
        skip_availability_check=True,
    )
)
issues = result.get_issues(min_severity=severity)
for issue in issues:
    print(f"{issue.check.identifier}: {issue.message}")
print(f"{len(issues)} issues in {len(list(result.executed_checks))} checks")
sys.exit(1 if issues else 0)
