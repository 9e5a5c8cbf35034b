// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"github.com/weft-storage/weft/dataplane/agent/decide"
	"github.com/weft-storage/weft/dataplane/engine"
)

// recordsPatience with another agent of this node that still has the file open: one that is being stopped.
const recordsPatience = 30 * time.Second

var (
	itemsBucket  = []byte("items")
	nodeBucket   = []byte("node")
	suspicionKey = []byte("suspicion")
)

// Records of what this node acted on, in a file of its own. They are read when it is opened, and every change is synced
// to the drive before Write answers. Safe for concurrent use.
type Records struct {
	db *bbolt.DB

	mu sync.Mutex
	// items by UUID, and the ID of a restore that is suspected.
	items     map[engine.ID]decide.Record
	suspicion string
}

// OpenRecords in a folder, which is made if it is missing. It fails when another process has them open, and when the
// file is damaged; one that is taken away leaves a node without a record of what it has, which a person has to declare.
func OpenRecords(dir string) (*Records, error) {
	path := filepath.Join(dir, "records.db")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open the records: %w", err)
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: recordsPatience})
	if err != nil {
		return nil, fmt.Errorf("open the records %s: %w", path, err)
	}
	r := &Records{db: db, items: map[engine.ID]decide.Record{}}
	if err := db.Update(r.load); err != nil {
		return nil, errors.Join(fmt.Errorf("read the records %s: %w", path, err), db.Close())
	}
	return r, nil
}

func (r *Records) load(tx *bbolt.Tx) error {
	node, err := tx.CreateBucketIfNotExists(nodeBucket)
	if err != nil {
		return err
	}
	r.suspicion = string(node.Get(suspicionKey))
	for _, name := range [][]byte{notesBucket, leftBucket} {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	items, err := tx.CreateBucketIfNotExists(itemsBucket)
	if err != nil {
		return err
	}
	return items.ForEach(func(id, value []byte) error {
		var record decide.Record
		if err := json.Unmarshal(value, &record); err != nil {
			return fmt.Errorf("record of %s: %w", id, err)
		}
		r.items[engine.ID(id)] = record
		return nil
	})
}

// Close the file.
func (r *Records) Close() error { return r.db.Close() }

// Current records, and an ID for a suspicion that begins now.
func (r *Records) Current() decide.Records {
	r.mu.Lock()
	defer r.mu.Unlock()
	return decide.Records{Items: maps.Clone(r.items), Suspicion: r.suspicion, Next: rand.Text()}
}

// Write changes, all of them or none. The note about what has no record any more stays: it may only be out of sight.
func (r *Records) Write(c decide.RecordChanges) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(c.Put)+len(c.Drop) == 0 && c.Suspicion == r.suspicion {
		return nil
	}
	err := r.db.Update(func(tx *bbolt.Tx) error {
		items := tx.Bucket(itemsBucket)
		for id, record := range c.Put {
			value, err := json.Marshal(record)
			if err != nil {
				return fmt.Errorf("record of %s: %w", id, err)
			}
			if err := items.Put([]byte(id), value); err != nil {
				return fmt.Errorf("record of %s: %w", id, err)
			}
		}
		for _, id := range c.Drop {
			if err := items.Delete([]byte(id)); err != nil {
				return fmt.Errorf("record of %s: %w", id, err)
			}
		}
		if err := leaveNotes(tx, c.Drop); err != nil {
			return fmt.Errorf("notes without records: %w", err)
		}
		return tx.Bucket(nodeBucket).Put(suspicionKey, []byte(c.Suspicion))
	})
	if err != nil {
		return fmt.Errorf("write the records of what was acted on: %w", err)
	}
	maps.Copy(r.items, c.Put)
	for _, id := range c.Drop {
		delete(r.items, id)
	}
	r.suspicion = c.Suspicion
	return nil
}
