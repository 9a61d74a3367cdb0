//! The commands of a conversation, which begin with `/`.

use turnflow_engine::adjust::Adjustments;

use super::super::backend::NodeInfo;
use super::{Chat, Effect};

const HELP: &str = "/mode [NAME]            list the pipelines, or switch to one
/retriever [NODE]       list the nodes that can be switched off, or toggle one
/weights [NODE W W …]   show or set the weights; for two lists, one number is the first list's share
/collection [NAME]      list the collections, or choose one
/trace                  show or hide the output of every node
/clear                  start a new conversation
/quit                   quit
Enter asks, Esc stops the answer, Up and Down recall earlier lines, PageUp and PageDown scroll, Tab \
completes a command.";
pub(super) const COMMANDS: [&str; 8] =
    ["/mode", "/retriever", "/weights", "/collection", "/trace", "/clear", "/help", "/quit"];

impl Chat {
    /// Runs a command; `command` has no `/`.
    pub(super) fn command(&mut self, command: &str) -> Effect {
        let mut words = command.split_whitespace();
        let (name, arguments) = (words.next().unwrap_or_default(), words.collect::<Vec<_>>());
        match (name, &arguments[..]) {
            ("mode", []) => {
                let list = self
                    .pipelines
                    .iter()
                    .enumerate()
                    .map(|(at, pipeline)| format!("{} {}", if at == self.at { "*" } else { " " }, pipeline.name));
                self.note(list.collect::<Vec<_>>().join("\n"));
            }
            ("mode", [name]) => match self.pipelines.iter().position(|pipeline| pipeline.name == *name) {
                Some(_) if self.is_asking() => self.error("wait for the answer, or stop it with Esc"),
                Some(at) => {
                    self.at = at;
                    self.adjust = Adjustments::default();
                    self.choose_collection();
                    self.note(format!("now answering with {name}"));
                }
                None => self.error(format!("unknown pipeline `{name}`; /mode lists them")),
            },
            ("retriever", []) => self.note(self.switches()),
            ("retriever", nodes) => nodes.iter().for_each(|node| self.switch(node)),
            ("weights", []) => self.note(self.weights()),
            ("weights", [node, weights @ ..]) => self.weigh(node, weights),
            ("collection", []) => {
                let names: Vec<&str> = self.pipeline().corpora.iter().map(|corpus| &*corpus.name).collect();
                self.note(format!("{}\ncurrent: {}", names.join("\n"), self.collection.as_deref().unwrap_or("none")));
            }
            ("collection", [name]) => {
                if self.pipeline().corpora.iter().any(|corpus| corpus.name == *name) {
                    self.collection = Some((*name).to_owned());
                    self.note(format!("now searching `{name}`"));
                } else {
                    self.error(format!("unknown collection `{name}`; /collection lists them"));
                }
            }
            ("trace", []) => self.shows_trace = !self.shows_trace,
            ("clear", []) => {
                let effect = if self.running.take().is_some() { Effect::Stop } else { Effect::None };
                self.entries.clear();
                self.traces.clear();
                self.history.clear();
                self.turn = 0;
                self.note("a new conversation");
                return effect;
            }
            ("help" | "", []) => self.note(HELP),
            ("quit" | "exit" | "q", []) => return Effect::Leave,
            _ => self.error(format!("unknown command `/{command}`; /help lists them")),
        }
        Effect::None
    }

    /// The nodes that can be switched off: retrievers first.
    fn switchable(&self) -> Vec<&NodeInfo> {
        let mut nodes: Vec<&NodeInfo> = self.pipeline().nodes.iter().filter(|node| node.can_skip).collect();
        nodes.sort_by_key(|node| node.corpora.is_empty());
        nodes
    }

    fn switches(&self) -> String {
        let line = |node: &&NodeInfo| {
            let state = if self.adjust.skip.contains(&*node.id) { "off" } else { "on " };
            format!("{state} {} ({})", node.id, node.kind)
        };
        let lines: Vec<String> = self.switchable().iter().map(line).collect();
        if lines.is_empty() { "no node of this pipeline can be switched off".to_owned() } else { lines.join("\n") }
    }

    fn switch(&mut self, node: &str) {
        if !self.switchable().iter().any(|of| of.id == node) {
            return self.error(format!("`{node}` cannot be switched off; /retriever lists the nodes that can"));
        }
        let is_off = self.adjust.skip.remove(node) || !self.adjust.skip.insert(node.into());
        self.note(format!("{node} is now {}", if is_off { "on" } else { "off" }));
    }

    fn weights(&self) -> String {
        let lines = self.pipeline().nodes.iter().filter_map(|node| {
            let own = node.weights.as_ref()?;
            let now = self.adjust.weights.get(&*node.id).map_or(&own[..], |weights| weights);
            Some(format!("{} ({}): {now:?}", node.id, node.kind))
        });
        let lines: Vec<String> = lines.collect();
        if lines.is_empty() { "no node of this pipeline has weights".to_owned() } else { lines.join("\n") }
    }

    fn weigh(&mut self, node: &str, weights: &[&str]) {
        let Some(own) = self.pipeline().nodes.iter().find(|of| of.id == node).and_then(|of| of.weights.clone()) else {
            return self.error(format!("`{node}` has no weights; /weights lists the nodes that have"));
        };
        let parsed: Result<Vec<f32>, _> = weights.iter().map(|weight| weight.parse::<f32>()).collect();
        let mut parsed = match parsed {
            Ok(parsed) if parsed.iter().all(|weight| *weight >= 0.0 && weight.is_finite()) => parsed,
            _ => return self.error("weights must be numbers of at least 0"),
        };
        if let ([share], 2) = (&parsed[..], own.len())
            && *share <= 1.0
        {
            parsed = vec![*share, 1.0 - share];
        }
        if parsed.is_empty() {
            self.adjust.weights.remove(node);
            return self.note(format!("{node}: weights from the file: {own:?}"));
        }
        if parsed.len() != own.len() {
            return self.error(format!("{node} has {} weights, but {} were given", own.len(), parsed.len()));
        }
        self.note(format!("{node}: weights are now {parsed:?}"));
        self.adjust.weights.insert(node.into(), parsed.into());
    }
}
