"""What becomes of each keyword of JSON Schema. docs/forms.md has the same table."""

from typing import Final, Literal

Treatment = Literal["kept", "rewritten", "annotation", "refused"]
_BY_TREATMENT: Final[dict[Treatment, str]] = {
    "kept": "type properties patternProperties additionalProperties required prefixItems minItems maxItems "
    "minLength maxLength pattern anyOf oneOf allOf",
    "rewritten": "$id id $anchor $ref $defs definitions enum const minimum maximum exclusiveMinimum "
    "exclusiveMaximum multipleOf format items additionalItems propertyNames not if contains minContains "
    "maxContains uniqueItems minProperties maxProperties unevaluatedProperties unevaluatedItems "
    "dependentRequired dependentSchemas dependencies",
    "annotation": "title description default example examples deprecated readOnly writeOnly $comment $schema "
    "$vocabulary $dynamicAnchor $recursiveAnchor contentEncoding contentMediaType contentSchema then else",
    "refused": "$dynamicRef $recursiveRef",
}
# A keyword that is not here is an annotation.
KEYWORDS: Final[dict[str, Treatment]] = {
    name: treatment for treatment, names in _BY_TREATMENT.items() for name in names.split()
}
FORMATS: Final = frozenset("date-time time date duration email hostname ipv4 ipv6 uuid uri".split())
TYPES: Final = frozenset("null boolean object array number integer string".split())
# Where schemas are within a schema.
SCHEMA: Final = frozenset(
    "items additionalItems additionalProperties contains propertyNames not if then else unevaluatedItems "
    "unevaluatedProperties contentSchema".split()
)
SCHEMAS: Final = frozenset("prefixItems items allOf anyOf oneOf".split())
NAMED_SCHEMAS: Final = frozenset(
    "properties patternProperties $defs definitions dependentSchemas dependencies".split()
)
# Documentation, which nobody misses.
SILENT: Final = frozenset(
    "title description default example examples deprecated readOnly writeOnly $comment $schema".split()
)
