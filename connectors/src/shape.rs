//! What a sink gets and sends: conditions, and programs that make another form of an answer's record.
//!
//! ```ron
//! KafkaSink(input: "final", brokers: "localhost:9092", topic: "replies",
//!     when: Any([Answered, Jq(".checks.support > 0.5")]),
//!     body: Jq("{thread: .conversation_id, text: .answer, sources: [.hits[].document]}"))
//! ```

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{Building, Check, built, config};
use turnflow_engine::connector::{AnswerLog, AnswerSink, ConnectorError, Delivery, KeptAnswers};
use turnflow_engine::record::{AnswerRecord, Status};
use turnflow_engine::spec::FilePath;
use turnflow_records::{Body, Made};

/// A program that makes another form of an answer's record.
#[config]
pub enum BodyConfig {
    /// A jq program.
    Jq(#[field(hidden)] String),
    /// A file with a jq program, relative to the pipeline file.
    JqFile(FilePath),
}

/// Which answers a sink gets.
#[config]
pub enum When {
    /// Those that answer the question.
    Answered,
    /// Those that say that the documents do not answer it.
    Idk,
    /// Turns that failed.
    Failed,
    /// Those for whose record a jq program gives true.
    Jq(#[field(hidden)] String),
    /// Those that meet one of the conditions.
    Any(Vec<When>),
}

/// The fields of a sink that concern the form of what it sends.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shape<'a> {
    pub when: Option<&'a When>,
    pub body: Option<&'a BodyConfig>,
}

impl Shape<'_> {
    /// Reports what is wrong.
    pub fn validate(&self, check: &mut Check<'_>) {
        if let Some(when) = self.when {
            when.validate(check);
        }
        if let Some(body) = self.body {
            validate(body, "body", check);
        }
    }

    /// What `explain` adds.
    pub fn explain(&self) -> String {
        let when = self.when.map(|when| format!(", when: {}", when.explained())).unwrap_or_default();
        let body = match self.body {
            None => String::new(),
            Some(BodyConfig::Jq(_)) => ", body: Jq".to_owned(),
            Some(BodyConfig::JqFile(file)) => format!(", body: JqFile({:?})", file.written),
        };
        when + &body
    }

    /// What the sink sends.
    ///
    /// # Errors
    ///
    /// The program is wrong, or its file cannot be read.
    pub fn bodies(&self) -> Result<Bodies, ConnectorError> {
        self.body.map_or(Ok(Bodies(None)), |body| Ok(Bodies(Some(Arc::new(compiled(body)?)))))
    }

    /// The sink, which gets only the answers that meet the condition.
    pub fn chosen<'a>(&self, sink: Result<impl AnswerSink + 'static, ConnectorError>) -> Building<'a, dyn AnswerSink> {
        let condition = self.when.map(When::compiled).transpose();
        built(sink.and_then(|sink| {
            let inner: Box<dyn AnswerSink> = Box::new(sink);
            Ok(match condition? {
                Some(condition) => Box::new(Chosen { condition, inner }),
                None => inner,
            })
        }))
    }
}

/// Reports what is wrong with a program.
pub(crate) fn validate(body: &BodyConfig, field: &str, check: &mut Check<'_>) {
    match body {
        BodyConfig::Jq(code) => program(code, field, check),
        BodyConfig::JqFile(file) => {
            let Some(code) = check.text(field, file) else { return };
            if let Err(error) = Body::of(&code) {
                check.error("bad-program", field, format!("{}, {error}", file.written));
            }
        }
    }
}

fn program(code: &str, field: &str, check: &mut Check<'_>) {
    if let Err(error) = Body::of(code) {
        check.error_within("bad-program", field, (error.line, error.column), error.reason);
    }
}

/// Compiles a program.
pub(crate) fn compiled(body: &BodyConfig) -> Result<Body, ConnectorError> {
    let refused = |reason: String| ConnectorError::Refused { reason };
    let code = match body {
        BodyConfig::Jq(code) => code.clone(),
        BodyConfig::JqFile(file) => std::fs::read_to_string(&file.path)
            .map_err(|error| refused(format!("cannot read `{}`: {error}", file.written)))?,
    };
    Body::of(&code).map_err(|error| refused(error.to_string()))
}

impl When {
    fn validate(&self, check: &mut Check<'_>) {
        match self {
            Self::Answered | Self::Idk | Self::Failed => {}
            Self::Jq(code) => program(code, "when", check),
            Self::Any(of) if of.is_empty() => {
                check.error("wrong-value", "when", "`Any([])` holds for no answer".to_owned());
            }
            Self::Any(of) => {
                for when in of {
                    match when {
                        // The place of a program within a list is not known.
                        Self::Jq(code) => {
                            if let Err(error) = Body::of(code) {
                                check.error("bad-program", "when", error.to_string());
                            }
                        }
                        other => other.validate(check),
                    }
                }
            }
        }
    }

    fn explained(&self) -> String {
        match self {
            Self::Answered | Self::Idk | Self::Failed => format!("{self:?}"),
            Self::Jq(_) => "Jq".to_owned(),
            Self::Any(of) => of.iter().map(Self::explained).collect::<Vec<_>>().join(" or "),
        }
    }

    fn compiled(&self) -> Result<Condition, ConnectorError> {
        Ok(match self {
            Self::Answered => Condition::Status(Status::Answered),
            Self::Idk => Condition::Status(Status::Idk),
            Self::Failed => Condition::Status(Status::Failed),
            Self::Jq(code) => Condition::Holds(Box::new(compiled(&BodyConfig::Jq(code.clone()))?)),
            Self::Any(of) => Condition::Any(of.iter().map(Self::compiled).collect::<Result<_, _>>()?),
        })
    }
}

enum Condition {
    Status(Status),
    Holds(Box<Body>),
    Any(Vec<Condition>),
}

impl Condition {
    /// Whether an answer meets it. A retraction does: its receiver knows whether it has what is retracted.
    fn is_met(&self, answer: &AnswerRecord) -> Result<bool, ConnectorError> {
        if answer.retracted {
            return Ok(true);
        }
        match self {
            Self::Status(status) => Ok(answer.status == *status),
            Self::Holds(program) => {
                let holds = program.holds(&record(answer)?);
                holds.map_err(|error| ConnectorError::Refused { reason: format!("`when`: {error}") })
            }
            Self::Any(of) => {
                for condition in of {
                    if condition.is_met(answer)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }
}

fn record(answer: &AnswerRecord) -> Result<Vec<u8>, ConnectorError> {
    serde_json::to_vec(answer).map_err(|error| ConnectorError::Refused { reason: error.to_string() })
}

/// What a sink sends of its answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bodies(Option<Arc<Body>>);

impl Bodies {
    /// Whether it sends the records as they are.
    pub fn are_records(&self) -> bool {
        self.0.is_none()
    }

    /// What is sent of an answer: its record, or the values of the program.
    ///
    /// # Errors
    ///
    /// [`ConnectorError::Refused`]: the program fails on the record.
    pub fn of(&self, answer: &AnswerRecord) -> Result<Vec<Made>, ConnectorError> {
        let record = record(answer)?;
        match &self.0 {
            None => Ok(vec![Made::Json(String::from_utf8(record).unwrap_or_default())]),
            Some(program) => {
                program.run(&record).map_err(|error| ConnectorError::Refused { reason: format!("`body`: {error}") })
            }
        }
    }

    /// The one message of an answer, or none.
    ///
    /// # Errors
    ///
    /// [`ConnectorError::Refused`]: the program fails, or gives several values.
    pub fn message(&self, answer: &AnswerRecord) -> Result<Option<Vec<u8>>, ConnectorError> {
        let mut made = self.of(answer)?;
        if made.len() > 1 {
            let reason = format!("`body` gives {} values, and an answer is one message", made.len());
            return Err(ConnectorError::Refused { reason });
        }
        Ok(made.pop().map(|made| made.plain().into_bytes()))
    }
}

/// What a sink with these fields makes of answers, without the sink.
pub struct Outgoing {
    condition: Option<Condition>,
    bodies: Bodies,
}

impl Outgoing {
    /// For a sink's `when` and `body`.
    ///
    /// # Errors
    ///
    /// A program is wrong, or its file cannot be read.
    pub fn of(when: Option<&When>, body: Option<&BodyConfig>) -> Result<Self, ConnectorError> {
        let condition = when.map(When::compiled).transpose()?;
        Ok(Self { condition, bodies: Shape { when, body }.bodies()? })
    }

    /// What the sink sends of an answer; `None` if it does not get the answer.
    ///
    /// # Errors
    ///
    /// A program fails on the record.
    pub fn made(&self, answer: &AnswerRecord) -> Result<Option<Vec<Made>>, ConnectorError> {
        let is_met = self.condition.as_ref().map_or(Ok(true), |condition| condition.is_met(answer))?;
        if is_met { self.bodies.of(answer).map(Some) } else { Ok(None) }
    }
}

/// A sink that gets only some answers.
struct Chosen {
    condition: Condition,
    inner: Box<dyn AnswerSink>,
}

impl AnswerSink for Chosen {
    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>> {
        async move {
            let mut rest = delivery.answers();
            while let Some(first) = rest.first() {
                let is_met = self.condition.is_met(first)?;
                let mut length = 1;
                while let Some(next) = rest.get(length) {
                    // An error is told when it is the answer's turn.
                    if !matches!(self.condition.is_met(next), Ok(met) if met == is_met) {
                        break;
                    }
                    length += 1;
                }
                let (part, later) = rest.split_at(length);
                let before = delivery.taken();
                if is_met {
                    self.inner.deliver(delivery.part(part)).await?;
                }
                // A sink that has taken all need not have said so.
                delivery.took((before + part.len()).saturating_sub(delivery.taken()));
                rest = later;
            }
            Ok(())
        }
        .boxed()
    }

    fn batch(&self) -> usize {
        self.inner.batch()
    }

    fn begin(&mut self) -> Result<(), ConnectorError> {
        self.inner.begin()
    }

    fn kept(&mut self) -> Option<&mut dyn KeptAnswers> {
        self.inner.kept()
    }

    fn log(&self) -> Option<Arc<dyn AnswerLog>> {
        self.inner.log()
    }
}

#[cfg(test)]
mod tests;
