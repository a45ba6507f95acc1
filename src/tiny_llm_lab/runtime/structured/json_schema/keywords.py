"""What becomes of each keyword of JSON Schema. docs/forms.md has the same table."""

from typing import Final, Literal

Treatment = Literal["kept", "rewritten", "annotation", "refused"]
_BY_TREATMENT: Final[dict[Treatment, str]] = {
    "kept": "type properties patternProperties additionalProperties required prefixItems minItems maxItems "
    "minLength maxLength pattern anyOf oneOf allOf enum const",
    "rewritten": "$id id $anchor $ref $defs definitions minimum maximum exclusiveMinimum exclusiveMaximum "
    "multipleOf format items additionalItems minProperties maxProperties",
    "annotation": "title description default example examples deprecated readOnly writeOnly $comment $schema "
    "$vocabulary $dynamicAnchor $recursiveAnchor contentEncoding contentMediaType contentSchema then else",
    "refused": "$dynamicRef $recursiveRef not if contains minContains maxContains uniqueItems propertyNames "
    "unevaluatedProperties unevaluatedItems dependentRequired dependentSchemas dependencies",
}
# A keyword that is not here is an annotation.
KEYWORDS: Final[dict[str, Treatment]] = {
    name: treatment for treatment, names in _BY_TREATMENT.items() for name in names.split()
}
# Values of keywords that are refused otherwise, with which they say nothing.
TRIVIAL: Final[dict[str, tuple[object, ...]]] = {
    "not": (False,),
    "uniqueItems": (False,),
    "minProperties": (0,),
    "propertyNames": (True, {}, {"type": "string"}),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
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
