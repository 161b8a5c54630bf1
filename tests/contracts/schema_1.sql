-- A store as the first version made it, before there were migrations, with something of everything in it.
CREATE TABLE acts (
  target VARCHAR(300) NOT NULL,
  kind VARCHAR(16) NOT NULL,
  reason TEXT NOT NULL,
  at DOUBLE NOT NULL,
  until DOUBLE,
  "by" TEXT NOT NULL,
  PRIMARY KEY (target)
);
CREATE TABLE events (
  id INTEGER NOT NULL,
  at DOUBLE NOT NULL,
  kind VARCHAR(64) NOT NULL,
  subject TEXT NOT NULL,
  text TEXT NOT NULL,
  cause TEXT NOT NULL,
  PRIMARY KEY (id)
);
CREATE TABLE lease (
  id INTEGER NOT NULL,
  owner VARCHAR(64) NOT NULL,
  epoch BIGINT NOT NULL,
  expires DOUBLE NOT NULL,
  PRIMARY KEY (id)
);
CREATE TABLE llmgw_schema (
  version INTEGER NOT NULL
);
CREATE TABLE nodes (
  name VARCHAR(64) NOT NULL,
  spec TEXT NOT NULL,
  PRIMARY KEY (name)
);
CREATE TABLE trees (
  id INTEGER NOT NULL,
  revision TEXT NOT NULL,
  content TEXT NOT NULL,
  PRIMARY KEY (id)
);
CREATE TABLE blobs (
  digest VARCHAR(64) NOT NULL,
  content BLOB NOT NULL,
  PRIMARY KEY (digest)
);
CREATE TABLE revision_trees (
  digest VARCHAR(64) NOT NULL,
  content BLOB NOT NULL,
  PRIMARY KEY (digest)
);
CREATE TABLE revisions (
  number INTEGER NOT NULL,
  id VARCHAR(64) NOT NULL,
  revision TEXT NOT NULL,
  digest VARCHAR(64) NOT NULL,
  subject TEXT NOT NULL,
  author TEXT NOT NULL,
  at DOUBLE NOT NULL,
  "by" TEXT NOT NULL,
  how VARCHAR(16) NOT NULL,
  outcome VARCHAR(16) NOT NULL,
  note TEXT NOT NULL,
  ended DOUBLE,
  applied DOUBLE,
  committed DOUBLE,
  PRIMARY KEY (number),
  UNIQUE (id)
);
CREATE TABLE standing (
  id INTEGER NOT NULL,
  serial BIGINT NOT NULL,
  content TEXT NOT NULL,
  PRIMARY KEY (id)
);
CREATE TABLE used_plans (
  id VARCHAR(64) NOT NULL,
  at DOUBLE NOT NULL,
  expires DOUBLE NOT NULL,
  PRIMARY KEY (id)
);
