package collect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lasthop/lasthop/probe/collect/azure"
	"github.com/lasthop/lasthop/probe/collect/files"
	"github.com/lasthop/lasthop/probe/model"
)

// azureAgain is how long an answer stands where an observation goes on. Azure answers so many requests in an hour.
const azureAgain = 5 * time.Minute

// asked is what Azure told last.
type asked struct {
	// done is closed at the first answer.
	done   chan struct{}
	mu     sync.Mutex
	answer *azure.Answer
	err    error
}

// askAzure begins to ask Azure, if that is wanted.
func (c *Collector) askAzure() {
	client := c.options.Azure
	if client == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	q := &asked{done: make(chan struct{})}
	c.asked, c.stop = q, append(c.stop, cancel)
	c.followers.Go(func() {
		for first := true; ctx.Err() == nil; first = false {
			q.ask(ctx, *client, c.options.HostRoot)
			if first {
				close(q.done)
			}
			select {
			case <-ctx.Done():
			case <-time.After(azureAgain):
			}
		}
	})
}

func (q *asked) ask(ctx context.Context, client azure.Client, root string) {
	ctx, cancel := context.WithTimeout(ctx, azure.Limit)
	defer cancel()
	client.Identity = cmp.Or(client.Identity, files.AzureIdentity(root))
	client.HTTP = cmp.Or(client.HTTP, azure.HostClient(root))
	answer, err := client.AskNode(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %v: %w", azure.Limit, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.answer, q.err = answer, err
}

// awaitAzure waits for what Azure tells, azure.Limit after Open at most.
func (c *Collector) awaitAzure(ctx context.Context) {
	if c.asked == nil {
		return
	}
	select {
	case <-c.asked.done:
	case <-ctx.Done():
	}
}

// readCloud sets the cloud's network: what files and Azure tell of it.
func (r *reading) readCloud() {
	a, from := r.c.azure, r.c.options.RoutesFiles
	var err error
	if q := r.c.asked; q != nil {
		q.mu.Lock()
		answer := q.answer
		err = q.err
		q.mu.Unlock()
		switch {
		case answer != nil:
			a.Tables, from = slices.Clone(a.Tables), append(from[:len(from):len(from)], azure.Source)
			azure.Merge(&a, &answer.Azure)
			if len(answer.Unread) > 0 {
				err = errors.New(strings.Join(model.Map(answer.Unread, azure.Unread.String), "; "))
			}
		case err == nil:
			err = errors.New("no answer of Azure yet")
		}
	}
	if len(from) == 0 && err == nil {
		return
	}
	a.Node = r.files.Cloud
	r.s.Cluster.Azure = a
	r.report(model.SourceCloud, fmt.Sprintf("%s, %s, %s, %s, %s, %s from %s", model.Quantity(len(a.Tables), "route table"),
		model.Quantity(len(a.Subnets), "subnet"), model.Plural(len(a.Effective), "list of effective routes", "lists of effective routes"),
		model.Quantity(len(a.NICs), "NIC"), model.Quantity(len(a.Groups), "security group"),
		model.Plural(len(a.Rules), "list of effective rules", "lists of effective rules"), strings.Join(from, ", ")), len(from) > 0, err)
}
