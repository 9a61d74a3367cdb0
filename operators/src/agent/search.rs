//! The agent's search: a small graph of operators from a query to hits, which one call of the agent runs often.

use std::collections::BTreeMap;
use std::sync::Arc;

use turnflow_engine::component::{
    BuildError, Call, Check, ComponentContext, ComponentError, Models, Operator, OperatorConfig, OperatorError,
    OperatorKind, call_inner,
};
use turnflow_engine::record::{Failure, Hits, PortType, Query, Value};
use turnflow_engine::spec::{self, Entry, Kind, Sources, Span, SpecError, Tree};

/// The name that stands for the agent's query in the inputs of operators.
pub(super) const QUERY: &str = "query";

/// An operator of the graph.
pub(super) struct Member {
    /// Its name in `search`.
    pub id: String,
    /// Its kind.
    pub kind: &'static OperatorKind,
    /// Its configuration.
    pub config: Box<dyn OperatorConfig>,
    /// The names of its inputs, each with the field that has it.
    named: Vec<(&'static str, String)>,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}: {}({:?})", self.id, self.kind.name, self.config)
    }
}

/// The configured graph.
#[derive(Debug, Default)]
pub(super) struct SearchConfig {
    /// All operators, in the order of the file.
    all: Vec<Member>,
    /// Positions of those that the last one needs, each after its inputs; with the positions of the inputs in this list,
    /// `None` for the query. Empty if the graph has an error.
    order: Vec<(usize, Vec<Option<usize>>)>,
}

/// An error of the graph: the member, the field, the code and the message.
type Problem = (String, &'static str, &'static str, String);

fn wrong(span: Span, message: impl Into<String>) -> SpecError {
    SpecError { problem: spec::Problem::Other(message.into()), span: Some(span) }
}

impl SearchConfig {
    /// Reads the map `search`.
    pub fn parse(tree: &Tree, sources: &Sources) -> Result<Self, SpecError> {
        let Kind::Map(entries) = &tree.kind else {
            let expected = "a map of operators, as in {\"lexical\": Bm25(input: \"query\", …)}".to_owned();
            return Err(SpecError { problem: spec::Problem::Type { expected }, span: Some(tree.span) });
        };
        let all = entries.iter().map(|entry| member(entry, sources)).collect::<Result<Vec<_>, _>>()?;
        let mut this = Self { all, order: Vec::new() };
        if this.problems().is_empty() {
            this.order = this.ordered().unwrap_or_default();
        }
        Ok(this)
    }

    /// Reports wrong edges.
    pub fn validate(&self, check: &mut Check<'_>) {
        let mut problems = self.problems();
        if problems.is_empty() && self.order.is_empty() {
            let last = self.all.last().map(|member| member.id.clone()).unwrap_or_default();
            let message = "the operators of `search` read each other in a circle".to_owned();
            problems.push((last, "input", "cycle", message));
        }
        check.within("search", |check| {
            for (id, field, code, message) in problems {
                check.within(&id, |check| check.error(code, field, message));
            }
        });
    }

    fn problems(&self) -> Vec<Problem> {
        let mut problems: Vec<Problem> = Vec::new();
        for Member { id, kind, named, .. } in &self.all {
            let owner = format!("{} `{id}`", kind.name);
            for (field, name) in named {
                let given = match self.find(name) {
                    Some(at) => self.all[at].kind.output,
                    None if name == QUERY => PortType::Queries,
                    None => {
                        let message = format!("{owner}: `search` has no `{name}`");
                        problems.push((id.clone(), field, "unknown-input", message));
                        continue;
                    }
                };
                if let Some(port) = kind.inputs.iter().find(|port| port.field == *field && !port.takes(given)) {
                    let message = format!("{owner} expects {port}, but `{name}` outputs {given}");
                    problems.push((id.clone(), field, "port-type", message));
                }
            }
        }
        match self.all.last() {
            Some(Member { kind, .. }) if kind.output == PortType::Hits => {}
            Some(Member { id, kind, .. }) => {
                let message = format!("{} `{id}` is the last operator of `search`, but gives no hits", kind.name);
                problems.push((id.clone(), "", "port-type", message));
            }
            None => problems.push((String::new(), "", "wrong-value", "`search` needs an operator".to_owned())),
        }
        problems
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.all.iter().position(|member| member.id == name)
    }

    /// The members that the last one needs; `None` if they form a cycle.
    fn ordered(&self) -> Option<Vec<(usize, Vec<Option<usize>>)>> {
        let (mut places, mut order) = (BTreeMap::new(), Vec::new());
        self.visit(self.all.len().checked_sub(1)?, &mut places, &mut order)?;
        Some(order)
    }

    /// Adds a member after its inputs; returns its place. `places` has `None` for members whose inputs are being added.
    fn visit(
        &self,
        at: usize,
        places: &mut BTreeMap<usize, Option<usize>>,
        order: &mut Vec<(usize, Vec<Option<usize>>)>,
    ) -> Option<usize> {
        if let Some(place) = places.get(&at) {
            return *place;
        }
        places.insert(at, None);
        let mut inputs = Vec::new();
        for (_, name) in &self.all[at].named {
            inputs.push(match self.find(name) {
                Some(input) => Some(self.visit(input, places, order)?),
                None => None,
            });
        }
        order.push((at, inputs));
        places.insert(at, Some(order.len() - 1));
        Some(order.len() - 1)
    }

    /// The members to check: those that run, or all if the graph has an error.
    pub fn checked(&self) -> Vec<&Member> {
        if self.order.is_empty() { self.all.iter().collect() } else { self.members().collect() }
    }

    /// The members that run.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.order.iter().map(|(at, _)| &self.all[*at])
    }

    /// Whether every search fails without these models.
    pub fn fails_without(&self, lacks: &dyn Fn(&str) -> bool) -> bool {
        let mut failing: Vec<bool> = Vec::new();
        for (at, inputs) in &self.order {
            let config = &self.all[*at].config;
            let failed = inputs.iter().flatten().filter(|input| failing[**input]).count();
            let all_failed = failed == inputs.len();
            failing.push(config.fails_without(lacks) || (failed > 0 && (!config.falls_back() || all_failed)));
        }
        failing.pop().unwrap_or(false)
    }

    /// Builds the operators.
    pub async fn build(&self, context: &ComponentContext, models: &Models) -> Result<Search, BuildError> {
        let mut members = Vec::new();
        for (at, inputs) in &self.order {
            let Member { id, config, .. } = &self.all[*at];
            let lacking = config.models().iter().find(|used| !models.contains_key(used.name)).map(|used| used.name);
            let operator = match lacking {
                Some(model) => Err(format!("model `{model}` is not loaded")),
                None => Ok(config.build(context, models).await?),
            };
            members.push(Built { id: id.as_str().into(), operator, inputs: inputs.clone() });
        }
        Ok(Search { members })
    }
}

/// Reads an operator of the map.
fn member(entry: &Entry, sources: &Sources) -> Result<Member, SpecError> {
    let (id, tree) = (&entry.key.text, &entry.value);
    if id == QUERY {
        return Err(wrong(entry.key.span, "`query` is the agent's query; give the operator another name"));
    }
    let Some(name) = tree.name() else {
        return Err(wrong(tree.span, "expected an operator, as in `Bm25(…)`"));
    };
    let takes = |kind: &&OperatorKind| {
        kind.output == PortType::Hits || (kind.output == PortType::Queries && kind.inputs[0].takes(PortType::Queries))
    };
    let Some(kind) = crate::OPERATORS.iter().filter(takes).find(|kind| kind.name == name.text) else {
        return Err(wrong(name.span, format!("`{}` is no operator that gives hits or queries", name.text)));
    };
    let config = (kind.parse)(tree, sources)?;
    let mut named = Vec::new();
    for port in kind.inputs {
        let trees: Vec<&Tree> = match tree.get(port.field).map(|tree| (tree, &tree.kind)) {
            Some((_, Kind::Seq(items))) if port.many => items.iter().collect(),
            Some((tree, _)) if !port.many => vec![tree],
            _ => continue,
        };
        named.extend(trees.into_iter().filter_map(|tree| Some((port.field, tree.text()?.to_owned()))));
    }
    Ok(Member { id: id.clone(), kind, config, named })
}

/// A built member; without its operator if a model is not loaded.
struct Built {
    id: Arc<str>,
    operator: Result<Arc<dyn Operator>, String>,
    inputs: Vec<Option<usize>>,
}

/// The built graph.
pub(super) struct Search {
    members: Vec<Built>,
}

impl Search {
    /// The hits for a text, in the corpora that the call reads.
    pub async fn run(&self, call: &Call, text: &str) -> Result<Arc<Hits>, OperatorError> {
        let query = Value::Query(Query::new(text));
        let mut values: Vec<Value> = Vec::new();
        let mut errors: BTreeMap<Arc<str>, OperatorError> = BTreeMap::new();
        for Built { id, operator, inputs } in &self.members {
            let failure = |reason: String| Value::Failed(Failure::new(id.clone(), reason));
            let inputs: Vec<Value> =
                inputs.iter().map(|input| input.map_or_else(|| query.clone(), |at| values[at].clone())).collect();
            let failed = inputs.iter().find(|input| matches!(input, Value::Failed(_))).cloned();
            values.push(match (operator, failed) {
                (Err(reason), _) => failure(reason.clone()),
                (Ok(operator), Some(failed)) if !operator.takes_failures() => failed,
                (Ok(operator), _) => {
                    let call = Call {
                        turn: call.turn.clone(),
                        inputs,
                        snapshot: call.snapshot.clone(),
                        warnings: call.warnings.clone(),
                        stream: Default::default(),
                        weights: None,
                        format: None,
                        watch: Default::default(),
                    };
                    call_inner(operator.clone(), call).await.unwrap_or_else(|error| {
                        let reason = error.to_string();
                        errors.insert(id.clone(), error);
                        failure(reason)
                    })
                }
            });
        }
        match values.pop() {
            Some(Value::Hits(hits)) => Ok(hits),
            Some(Value::Failed(Failure { node, reason, .. })) => Err(errors
                .remove(&node)
                .unwrap_or_else(|| OperatorError::Component(ComponentError::new(reason.to_string())))),
            _ => Err(OperatorError::Port("no hits")),
        }
    }
}
